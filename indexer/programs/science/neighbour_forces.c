// Forces of the K neighbours that a list names for every particle, repelling within 0.5.
// sizes small: N=4000 K=8; large: N=240000 K=10
#define N 40000
#define K 12

int list[N][K];
float x[N], y[N], f[N];
#pragma embeddb fill list below:N
#pragma embeddb fill f zero

void neighbour_forces(void)
{
#pragma scop
  for (int i = 0; i < N; i++)
    for (int k = 0; k < K; k++)
      f[i] += fmaxf(0.25f - (x[list[i][k]] - x[i]) * (x[list[i][k]] - x[i])
                          - (y[list[i][k]] - y[i]) * (y[list[i][k]] - y[i]), 0.0f);
#pragma endscop
}
