#: Tuners that are no file of their own: their classes by name.
PLUGINS = {
    "default": "tuners.ranking:DefaultTuner",
    "random": "tuners.ranking:RandomTuner",
    "rank": "tuners.ranking:RankTuner",
    "search": "tuners.ranking:SearchTuner",
    "static-best": "tuners.ranking:StaticBestTuner",
    "static-top-k": "tuners.ranking:StaticTopKTuner",
    "transfer": "tuners.ranking:TransferTuner",
    "transfer-rank": "tuners.ranking:TransferRankTuner",
}
