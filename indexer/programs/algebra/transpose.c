// B = A'.
// sizes small: N=176 M=184; large: N=1800 M=1700
#define N 800
#define M 760

double A[N][M], B[M][N];

void transpose(void)
{
#pragma scop
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++)
      B[i][j] = A[j][i];
#pragma endscop
}
