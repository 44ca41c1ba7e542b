// A step of Jacobi's method on a line.
// sizes small: N=80000; large: N=3000000
#define N 700000

double a[N], b[N];

void jacobi_1d(void)
{
#pragma scop
  for (int i = 1; i < N - 1; i++)
    b[i] = 0.33333 * (a[i - 1] + a[i] + a[i + 1]);
#pragma endscop
}
