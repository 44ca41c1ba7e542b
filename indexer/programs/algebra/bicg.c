// Both products of the biconjugate gradients in one sweep: s += A' r and q += A p.
// sizes small: N=368 M=352; large: N=2400 M=2300
#define N 1000
#define M 900

double A[N][M], r[N], s[M], p[M], q[N];
#pragma embeddb fill s zero
#pragma embeddb fill q zero

void bicg(void)
{
#pragma scop
  for (int i = 0; i < N; i++)
    for (int j = 0; j < M; j++) {
      s[j] += r[i] * A[i][j];
      q[i] += A[i][j] * p[j];
    }
#pragma endscop
}
