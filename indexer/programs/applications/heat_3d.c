// One explicit step of the heat equation in space: v = u + 0.1 (sum of six neighbours - 6 u).
// sizes small: N=48; large: N=176
#define N 80

float u[N + 2][N + 2][N + 2], v[N + 2][N + 2][N + 2];

void heat_3d(void)
{
#pragma scop
  for (int i = 1; i < N + 1; i++)
    for (int j = 1; j < N + 1; j++)
      for (int k = 1; k < N + 1; k++)
        v[i][j][k] = u[i][j][k]
                   + 0.1f * (u[i - 1][j][k] + u[i + 1][j][k] + u[i][j - 1][k] + u[i][j + 1][k]
                             + u[i][j][k - 1] + u[i][j][k + 1] - 6.0f * u[i][j][k]);
#pragma endscop
}
