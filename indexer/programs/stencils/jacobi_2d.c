// A step of Jacobi's method in the plane: the mean of a point and its four neighbours.
// sizes small: N=280; large: N=1700
#define N 800

double A[N][N], B[N][N];

void jacobi_2d(void)
{
#pragma scop
  for (int i = 1; i < N - 1; i++)
    for (int j = 1; j < N - 1; j++)
      B[i][j] = 0.2 * (A[i][j] + A[i][j - 1] + A[i][j + 1] + A[i - 1][j] + A[i + 1][j]);
#pragma endscop
}
