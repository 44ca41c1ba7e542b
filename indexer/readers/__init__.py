"""Readers of run logs. A file has one format, or several that are alike: those are listed here."""

PLUGINS = {
    "autotvm": "indexer.readers.tvm:AutoTvmReader",
    "cognate-mapped": "indexer.readers.cognate:CognateMappedReader",
    "csv": "indexer.readers.mapped:CsvReader",
    "jsonl": "indexer.readers.mapped:JsonlReader",
    "lcm": "indexer.readers.spmm_tables:LcmReader",
    "liteform": "indexer.readers.spmm_tables:LiteformReader",
    "morpheus": "indexer.readers.ginkgo:MorpheusReader",
    "ra-spmm": "indexer.readers.spmm_tables:RaSpmmReader",
    "t4": "indexer.readers.kernel_tuner:T4Reader",
}
