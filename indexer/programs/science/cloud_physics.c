// Saturation adjustment of a column model: where vapour exceeds what warm air holds, a part of
// the excess becomes cloud; where not, cloud evaporates.
// sizes small: L=24 N=4000; large: L=64 N=48000
#define L 40
#define N 8000

float warmth[L][N], held[L][N], vapour[L][N], cloud[L][N];

void cloud_physics(void)
{
#pragma scop
  for (int k = 0; k < L; k++)
    for (int i = 0; i < N; i++)
      held[k][i] = 0.6f * expf(17.3f * (warmth[k][i] - 0.5f) / (warmth[k][i] + 23.0f));
  for (int k = 0; k < L; k++)
    for (int i = 0; i < N; i++)
      if (vapour[k][i] > held[k][i])
        cloud[k][i] += 0.5f * (vapour[k][i] - held[k][i]);
  for (int k = 0; k < L; k++)
    for (int i = 0; i < N; i++)
      if (vapour[k][i] <= held[k][i])
        cloud[k][i] = fmaxf(cloud[k][i] - 0.1f * (held[k][i] - vapour[k][i]), 0.0f);
#pragma endscop
}
