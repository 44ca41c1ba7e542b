// Forward substitution in place for M right-hand sides, with ones on the diagonal of L / N.
// sizes small: N=88 M=72; large: N=320 M=304
#define N 192
#define M 184

double L[N][N], X[N][M];

void trsm(void)
{
#pragma scop
  for (int i = 1; i < N; i++)
    for (int j = 0; j < i; j++)
      for (int r = 0; r < M; r++)
        X[i][r] -= L[i][j] * X[j][r] / N;
#pragma endscop
}
