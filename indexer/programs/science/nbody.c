// Softened gravity of all bodies on all: the inverse of every distance, then the force along x,
// y and z.
// sizes small: N=256; large: N=3000
#define N 1200

float x[N], y[N], z[N], mass[N], near[N][N], fx[N], fy[N], fz[N];
#pragma embeddb fill fx zero
#pragma embeddb fill fy zero
#pragma embeddb fill fz zero

void nbody(void)
{
#pragma scop
  for (int i = 0; i < N; i++)
    for (int j = 0; j < N; j++)
      near[i][j] = 1.0f / sqrtf((x[j] - x[i]) * (x[j] - x[i]) + (y[j] - y[i]) * (y[j] - y[i])
                                + (z[j] - z[i]) * (z[j] - z[i]) + 0.01f);
  for (int i = 0; i < N; i++)
    for (int j = 0; j < N; j++) {
      fx[i] += mass[j] * (x[j] - x[i]) * near[i][j] * near[i][j] * near[i][j];
      fy[i] += mass[j] * (y[j] - y[i]) * near[i][j] * near[i][j] * near[i][j];
      fz[i] += mass[j] * (z[j] - z[i]) * near[i][j] * near[i][j] * near[i][j];
    }
#pragma endscop
}
