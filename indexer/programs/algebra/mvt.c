// x += A y and u += A' v, a row of the result at a time.
// sizes small: N=368; large: N=2304
#define N 1008

double A[N][N], x[N], y[N], u[N], v[N];

void mvt(void)
{
#pragma scop
  for (int i = 0; i < N; i++)
    for (int j = 0; j < N; j++)
      x[i] += A[i][j] * y[j];
  for (int i = 0; i < N; i++)
    for (int j = 0; j < N; j++)
      u[i] += A[j][i] * v[j];
#pragma endscop
}
