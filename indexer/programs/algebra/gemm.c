// C = beta C + alpha A B.
// sizes small: N=72 M=64 K=80; large: N=256 M=240 K=288
#define N 160
#define M 144
#define K 176

double A[N][K], B[K][M], C[N][M];
double alpha = 1.5, beta = 0.5;

void gemm(void)
{
#pragma scop
  for (int i = 0; i < N; i++)
    for (int j = 0; j < M; j++) {
      C[i][j] *= beta;
      for (int k = 0; k < K; k++)
        C[i][j] += alpha * A[i][k] * B[k][j];
    }
#pragma endscop
}
