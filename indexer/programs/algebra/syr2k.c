// The lower triangle of C += A B' + B A', rows of C innermost.
// sizes small: N=80 K=64; large: N=304 K=288
#define N 176
#define K 160

double A[N][K], B[N][K], C[N][N];

void syr2k(void)
{
#pragma scop
  for (int i = 0; i < N; i++)
    for (int k = 0; k < K; k++)
      for (int j = 0; j < i + 1; j++)
        C[i][j] += A[j][k] * B[i][k] + B[j][k] * A[i][k];
#pragma endscop
}
