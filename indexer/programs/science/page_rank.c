// A round of page ranks: what every page receives of those that link to it.
// sizes small: N=4000 Z=32000; large: N=320000 Z=1500000
#define N 60000
#define Z 480000

int row[N + 1], col[Z];
double before[N], degree[N], after[N];
#pragma embeddb matrix N N Z row col
#pragma embeddb fill row offsets:Z:10
#pragma embeddb fill col below:N
#pragma embeddb fill after zero

void page_rank(void)
{
#pragma scop
  for (int i = 0; i < N; i++)
    for (int k = row[i]; k < row[i + 1]; k++)
      after[i] += 0.85 * before[col[k]] / (1.0 + degree[col[k]]);
#pragma endscop
}
