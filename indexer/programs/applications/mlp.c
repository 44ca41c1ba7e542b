// A perceptron of two layers for a batch of rows: Y += max(X V + b, 0) W.
// sizes small: B=32 N=128 M=160 K=64; large: B=64 N=640 M=512 K=128
#define B 64
#define N 256
#define M 256
#define K 64

float X[B][N], V[N][M], b[M], H[B][M], W[M][K], Y[B][K];
#pragma embeddb fill H zero
#pragma embeddb fill Y zero

void mlp(void)
{
#pragma scop
  for (int i = 0; i < B; i++)
    for (int j = 0; j < M; j++)
      for (int k = 0; k < N; k++)
        H[i][j] += X[i][k] * V[k][j];
  for (int i = 0; i < B; i++)
    for (int j = 0; j < M; j++)
      H[i][j] = fmaxf(H[i][j] + b[j], 0.0f);
  for (int i = 0; i < B; i++)
    for (int j = 0; j < K; j++)
      for (int k = 0; k < M; k++)
        Y[i][j] += H[i][k] * W[k][j];
#pragma endscop
}
