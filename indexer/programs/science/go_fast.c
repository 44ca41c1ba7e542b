// The trace of tanh A, added to every element.
// sizes small: N=280; large: N=2100
#define N 1000

double A[N][N], B[N][N], trace[1];
#pragma embeddb fill trace zero

void go_fast(void)
{
#pragma scop
  for (int i = 0; i < N; i++)
    trace[0] += tanh(A[i][i]);
  for (int i = 0; i < N; i++)
    for (int j = 0; j < N; j++)
      B[i][j] = A[i][j] + trace[0];
#pragma endscop
}
