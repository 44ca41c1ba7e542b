// Sums of the columns, sums of squares around the means, the columns scaled, and the products
// of different ones.
// sizes small: N=1200 M=48; large: N=20000 M=40
#define N 4000
#define M 72

double X[N][M], Z[N][M], sum[M], square[M], corr[M][M];
#pragma embeddb fill sum zero
#pragma embeddb fill square zero
#pragma embeddb fill corr zero

void correlation(void)
{
#pragma scop
  for (int i = 0; i < N; i++)
    for (int j = 0; j < M; j++)
      sum[j] += X[i][j];
  for (int i = 0; i < N; i++)
    for (int j = 0; j < M; j++)
      square[j] += (X[i][j] - sum[j] / N) * (X[i][j] - sum[j] / N);
  for (int i = 0; i < N; i++)
    for (int j = 0; j < M; j++)
      Z[i][j] = (X[i][j] - sum[j] / N) / sqrt(square[j]);
  for (int k = 0; k < N; k++)
    for (int i = 0; i < M - 1; i++)
      for (int j = i + 1; j < M; j++)
        corr[i][j] += Z[k][i] * Z[k][j];
#pragma endscop
}
