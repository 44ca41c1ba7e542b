// A += u v' + p q', then x += beta A' y, then w += alpha A x.
// sizes small: N=352; large: N=2208
#define N 992

double A[N][N], u[N], v[N], p[N], q[N], x[N], y[N], w[N];
double alpha = 1.5, beta = 1.2;
#pragma embeddb fill w zero

void gemver(void)
{
#pragma scop
  for (int i = 0; i < N; i++)
    for (int j = 0; j < N; j++)
      A[i][j] = A[i][j] + u[i] * v[j] + p[i] * q[j];
  for (int i = 0; i < N; i++)
    for (int j = 0; j < N; j++)
      x[i] += beta * A[j][i] * y[j];
  for (int i = 0; i < N; i++)
    for (int j = 0; j < N; j++)
      w[i] += alpha * A[i][j] * x[j];
#pragma endscop
}
