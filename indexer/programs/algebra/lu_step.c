// One step of an elimination: every row below the pivot P less its share of the pivot's row.
// sizes small: N=380 P=8; large: N=2200 P=64
#define N 1024
#define P 64

double A[N][N];

void lu_step(void)
{
#pragma scop
  for (int i = P + 1; i < N; i++)
    for (int j = P + 1; j < N; j++)
      A[i][j] -= A[i][P] * A[P][j] / 4.0;
#pragma endscop
}
