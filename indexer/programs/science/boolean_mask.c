// The sum by row of what a mask lets through, and the rest doubled in place.
// sizes small: N=320 M=340; large: N=2100 M=2300
#define N 900
#define M 1000

int mask[N][M];
double X[N][M], sum[N];
#pragma embeddb fill mask below:2
#pragma embeddb fill sum zero

void boolean_mask(void)
{
#pragma scop
  for (int i = 0; i < N; i++)
    for (int j = 0; j < M; j++)
      if (mask[i][j])
        sum[i] += X[i][j];
  for (int i = 0; i < N; i++)
    for (int j = 0; j < M; j++)
      if (mask[i][j] == 0)
        X[i][j] *= 2.0;
#pragma endscop
}
