"""An attack on embeddb that anybody can repeat: `make fuzz`, `make kill`, and a little of both in
`make test`. docs/explanation/threats.md says what must hold; here it is tried.

`mutate` makes bad inputs of good ones, `kinds/` says what good ones are and who reads them, `watch`
says what may not happen meanwhile, `fuzz` does that for hours. `syscalls` ends a process, or fills
its disk, at the n-th system call that writes; `verbs` are the writing verbs and `kill` what must
hold afterwards.
"""
