from dyno.probe.telemetry.loop import main

main()
