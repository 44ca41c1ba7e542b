// Prices of calls, with the normal distribution as (1 + tanh(0.797885 d (1 + 0.044715 d^2))) / 2.
// sizes small: N=16000; large: N=1200000
#define N 250000

double price[N], strike[N], years[N], d[N], call[N];

void black_scholes(void)
{
#pragma scop
  for (int i = 0; i < N; i++)
    d[i] = (log((price[i] + 0.5) / (strike[i] + 0.5)) + 0.065 * (years[i] + 0.1))
         / (0.3 * sqrt(years[i] + 0.1));
  for (int i = 0; i < N; i++)
    call[i] = (price[i] + 0.5)
                * (0.5 + 0.5 * tanh(0.797885 * d[i] * (1.0 + 0.044715 * d[i] * d[i])))
            - (strike[i] + 0.5) * exp(-0.02 * (years[i] + 0.1)) * (0.5 + 0.5 * tanh(
                0.797885 * (d[i] - 0.3 * sqrt(years[i] + 0.1))
                * (1.0 + 0.044715 * (d[i] - 0.3 * sqrt(years[i] + 0.1))
                         * (d[i] - 0.3 * sqrt(years[i] + 0.1)))));
#pragma endscop
}
