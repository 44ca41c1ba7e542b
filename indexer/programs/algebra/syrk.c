// The lower triangle of C += alpha A A'.
// sizes small: N=96 K=64; large: N=352 K=320
#define N 208
#define K 192

double A[N][K], C[N][N];
double alpha = 1.5;

void syrk(void)
{
#pragma scop
  for (int i = 0; i < N; i++)
    for (int j = 0; j < i + 1; j++)
      for (int k = 0; k < K; k++)
        C[i][j] += alpha * A[i][k] * A[j][k];
#pragma endscop
}
