// The last dimension of a tensor times a matrix: S[r][q][p] += A[r][q][s] B[s][p].
// sizes small: R=16 Q=16 P=32; large: R=64 Q=72 P=80
#define R 40
#define Q 48
#define P 64

double A[R][Q][P], B[P][P], S[R][Q][P];
#pragma embeddb fill S zero

void doitgen(void)
{
#pragma scop
  for (int r = 0; r < R; r++)
    for (int q = 0; q < Q; q++)
      for (int p = 0; p < P; p++)
        for (int s = 0; s < P; s++)
          S[r][q][p] += A[r][q][s] * B[s][p];
#pragma endscop
}
