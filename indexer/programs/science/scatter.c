// Rows added to a table where their numbers say: how gradients reach it.
// sizes small: N=3000 T=4000 D=48; large: N=80000 T=100000 D=64
#define N 20000
#define T 24000
#define D 48

int index[N];
float table[T][D], rows[N][D];
#pragma embeddb fill index below:T

void scatter(void)
{
#pragma scop
  for (int i = 0; i < N; i++)
    for (int d = 0; d < D; d++)
      table[index[i]][d] += rows[i][d];
#pragma endscop
}
