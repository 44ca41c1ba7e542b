// y += L x with a lower triangular L.
// sizes small: N=400; large: N=2600
#define N 1400

double L[N][N], x[N], y[N];
#pragma embeddb fill y zero

void trmv(void)
{
#pragma scop
  for (int i = 0; i < N; i++)
    for (int j = 0; j < i + 1; j++)
      y[i] += L[i][j] * x[j];
#pragma endscop
}
