// One column q made orthogonal to: its products r with all columns of A, which then lose r q.
// sizes small: N=344 M=360; large: N=2400 M=2200
#define N 1000
#define M 960

double A[N][M], q[N], r[M];
#pragma embeddb fill r zero

void gram_schmidt_step(void)
{
#pragma scop
  for (int j = 0; j < M; j++)
    for (int i = 0; i < N; i++)
      r[j] += q[i] * A[i][j];
  for (int i = 0; i < N; i++)
    for (int j = 0; j < M; j++)
      A[i][j] -= q[i] * r[j] / N;
#pragma endscop
}
