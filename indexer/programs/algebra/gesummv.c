// y += alpha A x + beta B x.
// sizes small: N=256; large: N=1800
#define N 720

double A[N][N], B[N][N], x[N], y[N];
double alpha = 1.5, beta = 1.2;
#pragma embeddb fill y zero

void gesummv(void)
{
#pragma scop
  for (int i = 0; i < N; i++)
    for (int j = 0; j < N; j++)
      y[i] += alpha * A[i][j] * x[j] + beta * B[i][j] * x[j];
#pragma endscop
}
