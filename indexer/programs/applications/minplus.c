// Paths of one more step: D[i][j] is the least A[i][k] + B[k][j], where that is less.
// sizes small: N=64 M=64 K=64; large: N=288 M=272 K=256
#define N 176
#define M 160
#define K 160

float A[N][K], B[K][M], D[N][M];

void minplus(void)
{
#pragma scop
  for (int i = 0; i < N; i++)
    for (int j = 0; j < M; j++)
      for (int k = 0; k < K; k++)
        D[i][j] = fminf(D[i][j], A[i][k] + B[k][j]);
#pragma endscop
}
