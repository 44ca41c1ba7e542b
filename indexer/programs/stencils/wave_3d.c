// A step of the wave equation, of eighth order in space: a star of radius 4.
// sizes small: N=36; large: N=144
#define N 72

float u[N + 8][N + 8][N + 8], before[N][N][N], speed[N][N][N], after[N][N][N];

void wave_3d(void)
{
#pragma scop
  for (int i = 0; i < N; i++)
    for (int j = 0; j < N; j++)
      for (int k = 0; k < N; k++)
        after[i][j][k] = 2.0f * u[i + 4][j + 4][k + 4] - before[i][j][k] + speed[i][j][k] * (
            -8.5416667f * u[i + 4][j + 4][k + 4]
            + 1.6f * (u[i + 3][j + 4][k + 4] + u[i + 5][j + 4][k + 4] + u[i + 4][j + 3][k + 4]
                      + u[i + 4][j + 5][k + 4] + u[i + 4][j + 4][k + 3] + u[i + 4][j + 4][k + 5])
            - 0.2f * (u[i + 2][j + 4][k + 4] + u[i + 6][j + 4][k + 4] + u[i + 4][j + 2][k + 4]
                      + u[i + 4][j + 6][k + 4] + u[i + 4][j + 4][k + 2] + u[i + 4][j + 4][k + 6])
            + 0.02539683f
                * (u[i + 1][j + 4][k + 4] + u[i + 7][j + 4][k + 4] + u[i + 4][j + 1][k + 4]
                   + u[i + 4][j + 7][k + 4] + u[i + 4][j + 4][k + 1] + u[i + 4][j + 4][k + 7])
            - 0.0017857143f
                * (u[i][j + 4][k + 4] + u[i + 8][j + 4][k + 4] + u[i + 4][j][k + 4]
                   + u[i + 4][j + 8][k + 4] + u[i + 4][j + 4][k] + u[i + 4][j + 4][k + 8]));
#pragma endscop
}
