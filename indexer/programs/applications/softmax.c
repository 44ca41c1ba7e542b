// Row by row: Y = exp(X - max X) / sum of exp(X - max X).
// sizes small: N=256 M=512; large: N=1600 M=2048
#define N 512
#define M 1024

float X[N][M], most[N], E[N][M], sum[N], Y[N][M];
#pragma embeddb fill most zero
#pragma embeddb fill sum zero

void softmax(void)
{
#pragma scop
  for (int i = 0; i < N; i++)
    for (int j = 0; j < M; j++)
      most[i] = fmaxf(most[i], X[i][j]);
  for (int i = 0; i < N; i++)
    for (int j = 0; j < M; j++)
      E[i][j] = expf(X[i][j] - most[i]);
  for (int i = 0; i < N; i++)
    for (int j = 0; j < M; j++)
      sum[i] += E[i][j];
  for (int i = 0; i < N; i++)
    for (int j = 0; j < M; j++)
      Y[i][j] = E[i][j] / sum[i];
#pragma endscop
}
