// All steps of an elimination in place, with the pivots given: for k < i, j,
// A[i][j] -= A[i][k] A[k][j] / (N + p[k]).
// sizes small: N=96; large: N=336
#define N 208

double A[N][N], p[N];

void elimination(void)
{
#pragma scop
  for (int k = 0; k < N - 1; k++)
    for (int i = k + 1; i < N; i++)
      for (int j = k + 1; j < N; j++)
        A[i][j] -= A[i][k] * A[k][j] / (N + p[k]);
#pragma endscop
}
