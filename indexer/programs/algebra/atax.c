// y += A' (A x).
// sizes small: N=360 M=384; large: N=2200 M=2400
#define N 960
#define M 1024

double A[N][M], x[M], t[N], y[M];
#pragma embeddb fill t zero
#pragma embeddb fill y zero

void atax(void)
{
#pragma scop
  for (int i = 0; i < N; i++)
    for (int j = 0; j < M; j++)
      t[i] += A[i][j] * x[j];
  for (int i = 0; i < N; i++)
    for (int j = 0; j < M; j++)
      y[j] += A[i][j] * t[i];
#pragma endscop
}
