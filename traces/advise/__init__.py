"""Which method fits a cluster and two models: placements, virtual runs, ranges (docs/advise.md)."""
