// Diffusion of fourth order on every level, as weather models have it: the Laplacian, its fluxes
// along both axes, cut to 0 where they run up the gradient, and their divergence.
// sizes small: K=16 I=64 J=64; large: K=48 I=224 J=256
#define K 32
#define I 96
#define J 128

float u[K][I + 4][J + 4], laplacian[K][I + 2][J + 2], weight[K][I][J];
float along[K][I + 1][J], across[K][I][J + 1], v[K][I][J];

void horizontal_diffusion(void)
{
#pragma scop
  for (int k = 0; k < K; k++)
    for (int i = 0; i < I + 2; i++)
      for (int j = 0; j < J + 2; j++)
        laplacian[k][i][j] = 4.0f * u[k][i + 1][j + 1] - u[k][i][j + 1] - u[k][i + 2][j + 1]
                           - u[k][i + 1][j] - u[k][i + 1][j + 2];
  for (int k = 0; k < K; k++)
    for (int i = 0; i < I + 1; i++)
      for (int j = 0; j < J; j++)
        along[k][i][j] = (laplacian[k][i + 1][j + 1] - laplacian[k][i][j + 1])
                       * (u[k][i + 2][j + 2] - u[k][i + 1][j + 2]) > 0.0f
                       ? 0.0f : laplacian[k][i + 1][j + 1] - laplacian[k][i][j + 1];
  for (int k = 0; k < K; k++)
    for (int i = 0; i < I; i++)
      for (int j = 0; j < J + 1; j++)
        across[k][i][j] = (laplacian[k][i + 1][j + 1] - laplacian[k][i + 1][j])
                        * (u[k][i + 2][j + 2] - u[k][i + 2][j + 1]) > 0.0f
                        ? 0.0f : laplacian[k][i + 1][j + 1] - laplacian[k][i + 1][j];
  for (int k = 0; k < K; k++)
    for (int i = 0; i < I; i++)
      for (int j = 0; j < J; j++)
        v[k][i][j] = u[k][i + 2][j + 2]
                   - weight[k][i][j] * (along[k][i + 1][j] - along[k][i][j]
                                        + across[k][i][j + 1] - across[k][i][j]);
#pragma endscop
}
