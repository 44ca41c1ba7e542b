// A recursive smoothing filter, down the columns and then along the rows.
// sizes small: N=288 M=304; large: N=1500 M=1600
#define N 720
#define M 700

float x[N][M], y[N][M], z[N][M];

void recursive_filter(void)
{
#pragma scop
  for (int i = 1; i < N; i++)
    for (int j = 0; j < M; j++)
      y[i][j] = 0.25f * x[i][j] + 0.75f * y[i - 1][j];
  for (int i = 0; i < N; i++)
    for (int j = 1; j < M; j++)
      z[i][j] = 0.25f * y[i][j] + 0.75f * z[i][j - 1];
#pragma endscop
}
