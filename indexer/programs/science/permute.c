// A vector in the order of a permutation.
// sizes small: N=60000; large: N=2400000
#define N 600000

int place[N];
double x[N], y[N];
#pragma embeddb fill place permutation

void permute(void)
{
#pragma scop
  for (int i = 0; i < N; i++)
    y[i] = x[place[i]];
#pragma endscop
}
