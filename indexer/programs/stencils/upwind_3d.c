// A step of advection, the difference taken on the side that the wind comes from.
// sizes small: N=44; large: N=160
#define N 72

float c[N + 2][N + 2][N + 2], wind[N][N][N], after[N][N][N];

void upwind_3d(void)
{
#pragma scop
  for (int i = 0; i < N; i++)
    for (int j = 0; j < N; j++)
      for (int k = 0; k < N; k++)
        after[i][j][k] = c[i + 1][j + 1][k + 1]
                       - (wind[i][j][k] - 0.5f)
                       * (wind[i][j][k] > 0.5f ? c[i + 1][j + 1][k + 1] - c[i][j + 1][k + 1]
                                               : c[i + 2][j + 1][k + 1] - c[i + 1][j + 1][k + 1]);
#pragma endscop
}
