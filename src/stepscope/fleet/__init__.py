"""Many ranks: clocks, who makes whom wait, what-if over ranks, hangs, engines that scale."""
