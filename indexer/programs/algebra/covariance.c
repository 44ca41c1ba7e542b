// Means of the columns, the columns without them, and the upper triangle of their products
// over N - 1.
// sizes small: N=1000 M=40; large: N=12000 M=48
#define N 3000
#define M 64

double X[N][M], mean[M], cov[M][M];
#pragma embeddb fill mean zero
#pragma embeddb fill cov zero

void covariance(void)
{
#pragma scop
  for (int j = 0; j < M; j++)
    for (int i = 0; i < N; i++)
      mean[j] += X[i][j] / N;
  for (int i = 0; i < N; i++)
    for (int j = 0; j < M; j++)
      X[i][j] -= mean[j];
  for (int i = 0; i < M; i++)
    for (int j = i; j < M; j++)
      for (int k = 0; k < N; k++)
        cov[i][j] += X[k][i] * X[k][j] / (N - 1);
#pragma endscop
}
