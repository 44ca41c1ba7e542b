// The end of a cell of an LSTM: s(v) = (1 + tanh(v / 2)) / 2 of three gates, and the new state.
// sizes small: B=64 N=128; large: B=1024 N=1400
#define B 256
#define N 512

float I[B][N], F[B][N], O[B][N], G[B][N], c[B][N], h[B][N];

void lstm_cell(void)
{
#pragma scop
  for (int b = 0; b < B; b++)
    for (int i = 0; i < N; i++) {
      c[b][i] = (0.5f + 0.5f * tanhf(0.5f * F[b][i])) * c[b][i]
              + (0.5f + 0.5f * tanhf(0.5f * I[b][i])) * tanhf(G[b][i]);
      h[b][i] = (0.5f + 0.5f * tanhf(0.5f * O[b][i])) * tanhf(c[b][i]);
    }
#pragma endscop
}
