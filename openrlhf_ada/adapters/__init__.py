"""The method under other trainers than OpenRLHF's: one file for each."""
