// Thomas' elimination along every row of a plane, of whose columns the right-hand sides come.
// sizes small: N=160; large: N=1300
#define N 560

double u[N][N], p[N][N], q[N][N];

void adi_sweep(void)
{
#pragma scop
  for (int i = 0; i < N; i++)
    for (int j = 1; j < N; j++) {
      p[i][j] = 0.4 / (2.0 - 0.4 * p[i][j - 1]);
      q[i][j] = (u[j][i] + 0.4 * q[i][j - 1]) / (2.0 - 0.4 * p[i][j - 1]);
    }
#pragma endscop
}
