// Matrix product: C += A B.
// sizes small: N=64 M=64 K=64; large: N=256 M=320 K=288
#define N 160
#define M 192
#define K 160

float A[N][K], B[K][M], C[N][M];
#pragma embeddb fill C zero

void matmul(void)
{
#pragma scop
  for (int i = 0; i < N; i++)
    for (int j = 0; j < M; j++)
      for (int k = 0; k < K; k++)
        C[i][j] += A[i][k] * B[k][j];
#pragma endscop
}
