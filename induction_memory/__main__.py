from induction_memory.cli import main

main()
