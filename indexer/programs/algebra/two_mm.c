// D += (A B) C, the rows of B and C walked innermost.
// sizes small: N=64 M=72 K=64 L=56; large: N=240 M=256 K=272 L=224
#define N 144
#define M 160
#define K 160
#define L 128

double A[N][K], B[K][M], C[M][L], AB[N][M], D[N][L];
#pragma embeddb fill AB zero
#pragma embeddb fill D zero

void two_mm(void)
{
#pragma scop
  for (int i = 0; i < N; i++)
    for (int k = 0; k < K; k++)
      for (int j = 0; j < M; j++)
        AB[i][j] += A[i][k] * B[k][j];
  for (int i = 0; i < N; i++)
    for (int j = 0; j < M; j++)
      for (int l = 0; l < L; l++)
        D[i][l] += AB[i][j] * C[j][l];
#pragma endscop
}
