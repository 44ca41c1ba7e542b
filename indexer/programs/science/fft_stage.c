// The first stage of a fast Fourier transform by decimation in frequency, over rows: sums and
// twiddled differences of two halves.
// sizes small: N=160 M=192; large: N=1024 M=1100
#define N 400
#define M 512

float re[N][2 * M], im[N][2 * M], wr[M], wi[M], sr[N][2 * M], si[N][2 * M];

void fft_stage(void)
{
#pragma scop
  for (int i = 0; i < N; i++)
    for (int j = 0; j < M; j++) {
      sr[i][j] = re[i][j] + re[i][j + M];
      si[i][j] = im[i][j] + im[i][j + M];
      sr[i][j + M] = wr[j] * (re[i][j] - re[i][j + M]) - wi[j] * (im[i][j] - im[i][j + M]);
      si[i][j + M] = wr[j] * (im[i][j] - im[i][j + M]) + wi[j] * (re[i][j] - re[i][j + M]);
    }
#pragma endscop
}
