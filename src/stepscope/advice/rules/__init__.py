"""One module per rule. Each has `ID` and `find(subject)`, which gives the rule's findings."""
