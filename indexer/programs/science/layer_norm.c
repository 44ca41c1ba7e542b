// Every row less its mean, over its deviation.
// sizes small: N=256 M=512; large: N=2400 M=1536
#define N 512
#define M 1024

float X[N][M], mean[N], square[N], Y[N][M];
#pragma embeddb fill mean zero
#pragma embeddb fill square zero

void layer_norm(void)
{
#pragma scop
  for (int i = 0; i < N; i++)
    for (int j = 0; j < M; j++)
      mean[i] += X[i][j] / M;
  for (int i = 0; i < N; i++)
    for (int j = 0; j < M; j++)
      square[i] += (X[i][j] - mean[i]) * (X[i][j] - mean[i]) / M;
  for (int i = 0; i < N; i++)
    for (int j = 0; j < M; j++)
      Y[i][j] = (X[i][j] - mean[i]) / sqrtf(square[i] + 0.00001f);
#pragma endscop
}
