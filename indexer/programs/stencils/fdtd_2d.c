// A step of Maxwell's equations on Yee's grid in the plane: both electric fields, then the
// magnetic one.
// sizes small: N=240 M=256; large: N=1300 M=1200
#define N 640
#define M 600

double ex[N][M], ey[N][M], hz[N][M];

void fdtd_2d(void)
{
#pragma scop
  for (int i = 1; i < N; i++)
    for (int j = 0; j < M; j++)
      ey[i][j] -= 0.5 * (hz[i][j] - hz[i - 1][j]);
  for (int i = 0; i < N; i++)
    for (int j = 1; j < M; j++)
      ex[i][j] -= 0.5 * (hz[i][j] - hz[i][j - 1]);
  for (int i = 0; i < N - 1; i++)
    for (int j = 0; j < M - 1; j++)
      hz[i][j] -= 0.7 * (ex[i][j + 1] - ex[i][j] + ey[i + 1][j] - ey[i][j]);
#pragma endscop
}
